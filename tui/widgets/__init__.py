"""One widget a file; what it shows is made in `renderables`."""
