"""What the pages of docs/reference take from the code, one module for each source."""
