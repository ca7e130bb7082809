"""Sharing a cluster's GPUs, watts and joules among its jobs: models of jobs in, one allocation a round out."""
