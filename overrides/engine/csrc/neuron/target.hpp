#pragma once

#include <cstdlib>
#include <string_view>

#include <torch/types.h>

namespace deepinfer::neuron {

/// The device that DeepInfer's Neuron backend computes on: a NeuronCore (torch's PrivateUse1), or the host where
/// DEEPINFER_NEURON_DEVICE=cpu lets it stand in for one. The variable is read once, at the first call.
inline torch::Device target_device() {
    static const bool on_host = [] {
        const char *value = std::getenv("DEEPINFER_NEURON_DEVICE");
        return value != nullptr && std::string_view(value) == "cpu";
    }();
    return on_host ? torch::kCPU : torch::kPrivateUse1;
}

} // namespace deepinfer::neuron
