"""Placer decides which device every operation of a TensorFlow graph should run on."""
