"""How many pods a job may have: `compose` has the size sources and applies them in order."""
