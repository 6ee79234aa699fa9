"""The control plane: the source of its programs, its certificates, and its servers."""
