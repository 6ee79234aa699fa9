"""Adapters for training frameworks, one module per framework. A framework is imported only with its adapter."""
