"""Copies standard input to standard output, and then says on standard error how many bytes that were."""
import sys

data = sys.stdin.buffer.read()
sys.stdout.buffer.write(data)
print(len(data), file=sys.stderr)
