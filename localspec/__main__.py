"""`python -m localspec`."""

from localspec.cli import main

main()
