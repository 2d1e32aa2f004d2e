"""What other people train with, to be measured beside ours."""
