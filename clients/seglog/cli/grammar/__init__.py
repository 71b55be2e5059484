"""What can be typed: a module for each command of ``seglog``, with its arguments, options and help.

They import neither a client nor what the command does, so that help and completion are quick.
"""
