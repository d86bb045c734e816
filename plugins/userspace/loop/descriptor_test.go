package loop
const descriptorChild = "PATCHBAY_TEST_DESCRIPTORS"
func runDescriptorChild() int { return 0 }
