"""The page of `sita ui`: what adaptation does to one image, from the pixels to the layers."""
