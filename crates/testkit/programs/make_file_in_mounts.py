"""Makes the file `made` in each of the directories of its arguments, which says the directory's path; prints `done` and sleeps."""
import sys
import time

for directory in sys.argv[1:]:
    with open(f"{directory}/made", "w") as file:
        file.write(directory)
print("done")
time.sleep(10_000)
