"""Probes of a site: linear probes and local geometry."""
