"""What the operator does together with other controllers: each has a folder, and is off unless asked for."""
