"""Pretrained transformers models behind our contract."""
