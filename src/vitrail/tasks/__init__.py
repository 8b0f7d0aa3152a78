"""What a label is, from the table's column to the service's JSON: one class, several labels, or numbers."""
