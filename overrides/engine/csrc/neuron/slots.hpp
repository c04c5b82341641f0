#pragma once

#include <cstdint>
#include <vector>

#include <pybind11/numpy.h>
#include <torch/extension.h>

namespace deepinfer::neuron {

namespace detail {

/// Rows of an int32 [n, 2] array; an array without entries may have any shape.
inline std::vector<std::pair<int64_t, int64_t>> slot_pairs(const pybind11::array_t<int> &array, const char *what) {
    std::vector<std::pair<int64_t, int64_t>> pairs;
    if (array.size() == 0) {
        return pairs;
    }
    TORCH_CHECK(array.ndim() == 2 && array.shape(1) == 2, what, ": expected rows of (source, destination)");
    auto rows = array.unchecked<2>();
    pairs.reserve(rows.shape(0));
    for (pybind11::ssize_t i = 0; i < rows.shape(0); ++i) {
        pairs.emplace_back(rows(i, 0), rows(i, 1));
    }
    return pairs;
}

inline void check_slot(int64_t slot, const torch::Tensor &pool, const char *what) {
    TORCH_CHECK_INDEX(slot >= 0 && slot < pool.size(0), what, ": slot ", slot, " is outside the pool of ", pool.size(0));
}

inline pybind11::array_t<int> as_array(const std::vector<int> &values) { return pybind11::array_t<int>(values.size(), values.data()); }

} // namespace detail

/// Copies slots of the state and block pools and zeroes state slots, in the order given, through tensor views alone:
/// right for any device torch can copy on, without streams or raw device pointers.
///
/// A later copy sees what an earlier one wrote. Block 0 is the pool's dummy: a copy into it is skipped, its source is
/// released all the same. Every slot is checked before the first byte moves (IndexError).
///
/// @return (source slots of clone_states, source slots of clone_blocks), each an int32 array of its own.
inline pybind11::tuple clone_and_zero_states_and_blocks(torch::Tensor &states, torch::Tensor &blocks,
    const pybind11::array_t<int> &clone_states, const pybind11::array_t<int> &clone_blocks, const pybind11::array_t<int> &zero_states) {
    const auto state_pairs = detail::slot_pairs(clone_states, "clone_states");
    const auto block_pairs = detail::slot_pairs(clone_blocks, "clone_blocks");
    TORCH_CHECK(zero_states.size() == 0 || zero_states.ndim() == 1, "zero_states: expected one dimension");

    std::vector<int> released_states, released_blocks;
    for (const auto &[src, dst] : state_pairs) {
        detail::check_slot(src, states, "clone_states");
        detail::check_slot(dst, states, "clone_states");
        released_states.push_back(static_cast<int>(src));
    }
    for (const auto &[src, dst] : block_pairs) {
        detail::check_slot(src, blocks, "clone_blocks");
        detail::check_slot(dst, blocks, "clone_blocks");
        released_blocks.push_back(static_cast<int>(src));
    }
    std::vector<int64_t> zeroed;
    for (pybind11::ssize_t i = 0; i < zero_states.size(); ++i) {
        zeroed.push_back(zero_states.at(i));
        detail::check_slot(zeroed.back(), states, "zero_states");
    }

    torch::NoGradGuard no_grad;
    for (const auto &[src, dst] : state_pairs) {
        if (src != dst) {
            states.select(0, dst).copy_(states.select(0, src));
        }
    }
    for (const auto &[src, dst] : block_pairs) {
        if (dst != 0 && src != dst) {
            blocks.select(0, dst).copy_(blocks.select(0, src));
        }
    }
    for (const int64_t slot : zeroed) {
        states.select(0, slot).zero_();
    }
    return pybind11::make_tuple(detail::as_array(released_states), detail::as_array(released_blocks));
}

} // namespace deepinfer::neuron
