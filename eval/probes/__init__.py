"""What a fitted reader finds in a site: linear probes, a trained inverter, local geometry."""
