"""Decode Protobuf: descriptors on the driver, bytes to Arrow on the executors."""
