"""The interfaces of other libraries on torch.distributed, for scripts that were written for them."""
