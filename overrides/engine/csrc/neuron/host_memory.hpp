#pragma once

namespace deepinfer {

/// Whether host tensors that feed the device are page-locked. Neuron has no pinned allocator, and asking a host-only
/// torch for one throws.
#ifdef WITH_NEURON
inline constexpr bool kPinHostMemory = false;
#else
inline constexpr bool kPinHostMemory = true;
#endif

} // namespace deepinfer
