"""What a schema registry holds and how records refer to it: shared by the decoders and sinks that come with it."""
