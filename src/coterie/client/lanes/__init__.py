"""Small convolutional networks with one sample per lane of the processor's vector units, in compiled code."""
