"""What turns runs into knowledge."""
