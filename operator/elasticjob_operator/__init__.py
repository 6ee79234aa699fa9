"""The ElasticJob operator: it owns the membership of elastic PyTorch training jobs."""

__version__ = "0.1.0"
