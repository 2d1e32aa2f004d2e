"""Probes of a site: linear probes, a trained inverter, local geometry, retrieval."""
