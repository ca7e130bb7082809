"""The only room that touches hardware, real or virtual."""
