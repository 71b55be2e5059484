"""Queues of several servers: how workers take jobs from them, and how they are filled before that is measured.

A worker takes jobs of 100 bytes, and acknowledges them all when it asks for the next ones. What an answer counts is the
jobs that were acknowledged before.
"""
