"""The drafters and the interface they share. Imports nothing of localspec but its errors."""
