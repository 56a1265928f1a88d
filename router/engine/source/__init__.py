"""What is read: records of Kafka, files, Delta tables and other sources, with their positions."""
