"""Fills a dictionary, is captured (see captured.py), and reports whether every entry is there afterwards."""
import captured

entries = {n: str(n) * 3 for n in range(100_000)}
captured.ready()
captured.wait_until_restored()
captured.report(all(entries[n] == str(n) * 3 for n in range(100_000)))
