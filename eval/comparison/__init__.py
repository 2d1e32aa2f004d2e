"""Any number of checkpoints side by side, over everything that was measured of them."""
