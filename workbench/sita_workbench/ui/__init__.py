"""The page of `sita ui`: what adaptation does to one image, seen from the picture to the layers."""
