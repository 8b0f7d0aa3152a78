"""Other projects' checkpoint formats, one value each; a library with many families has a file for each part."""
