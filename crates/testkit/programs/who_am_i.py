"""Prints user id, group id, working directory and the variables GREETING and MORE."""
import os

print(os.getuid(), os.getgid(), os.getcwd(), os.environ.get("GREETING"), os.environ.get("MORE"))
