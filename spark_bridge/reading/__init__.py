"""What runs on executors: ranges, rows, the requests of a read, and decoding to Arrow."""

from spark_bridge.packages import check_packages

check_packages()  # before a module here imports them, so that the error of a worker says what to do
