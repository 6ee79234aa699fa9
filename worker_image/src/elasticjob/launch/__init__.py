"""How worker processes start: a fork server that has torch imported already, and the standby processes it forks."""
