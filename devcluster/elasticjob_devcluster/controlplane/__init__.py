"""The control plane: where its programs come from, its certificates, and its servers."""
