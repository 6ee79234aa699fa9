"""What people run to find out what is wrong: `elasticjob doctor`, the self test and `elasticjob bench`."""
