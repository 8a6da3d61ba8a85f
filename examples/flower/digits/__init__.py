"""Federated DP-SGD on handwritten digits with verax and Flower."""
