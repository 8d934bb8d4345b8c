"""The tutorials of docs/tutorials, run as they stand."""
