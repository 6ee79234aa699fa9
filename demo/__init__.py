"""The main job, watched: real training through a real API server while pods and the operator are killed."""
