"""Real servers for the tests, started and stopped here, and the judge that compares what was written with what arrived.

Everything listens on the loopback interface, lives in a temporary folder and dies with the process that started it.
"""
