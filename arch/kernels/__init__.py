"""The masked convolution, and what it runs on."""
