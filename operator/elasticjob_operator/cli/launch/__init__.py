"""Commands that start a job from files of this machine, and those that look into its pods."""
