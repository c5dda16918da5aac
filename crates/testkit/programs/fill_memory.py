"""Takes memory, 1 MiB at a time, until it is killed."""
data = []
while True:
    data.append(bytearray(b"x") * (1 << 20))
