// What other accelerators do with driver calls, done with torch tensors: no device header is needed to build this.

#include "cuda_utils.hpp"

#include <optional>

#include <torch/extension.h>

#include "utils/log.hpp"

namespace deepinfer::cuda::utils {

std::optional<torch::Tensor> alloc_tensor(ssize_t size) {
    TORCH_CHECK(size >= 0, "alloc_tensor: a size of ", size, " bytes");
    try {
        return torch::zeros({size}, torch::TensorOptions().dtype(torch::kByte).device(get_default_device()));
    } catch (const c10::Error &error) {
        LOG_ERROR("failed to allocate {} bytes on the device: {}", size, error.what_without_backtrace());
        return std::nullopt;
    }
}

std::optional<torch::Tensor> import_ipc_tensor(py::bytes) {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "import_ipc_tensor: not supported on Neuron (basic mode)");
}

py::bytes export_ipc_tensor(size_t, ssize_t) {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "export_ipc_tensor: not supported on Neuron (basic mode)");
}

void pymodule_init(pybind11::module &m) {
    // The library finds torch's own by its run path, but torch's Python types must exist before the first call.
    py::module_::import("torch");
    m.def("alloc_tensor", &deepinfer::cuda::utils::alloc_tensor, "Allocate a zeroed 1D byte tensor on the Neuron target.", py::arg("size"));
    m.def("export_ipc_tensor", &deepinfer::cuda::utils::export_ipc_tensor, "Not supported on Neuron.", py::arg("ptr"), py::arg("nbytes"));
    m.def("import_ipc_tensor", &deepinfer::cuda::utils::import_ipc_tensor, "Not supported on Neuron.", py::arg("data"));
}

} // namespace deepinfer::cuda::utils
