"""What holds of the source itself, whatever it computes."""
