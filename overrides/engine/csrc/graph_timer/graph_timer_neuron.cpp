// The graph timer on the host clock: an event is the time at which it was recorded. There are no captured graphs.

#include "graph_timer.hpp"

#include <atomic>
#include <chrono>
#include <deque>
#include <functional>
#include <mutex>

namespace deepinfer::graph_timer {

namespace {

constexpr int64_t kNotRecorded = -1;

/// Times of all events in nanoseconds, by event id. Handles are copied freely and share their id; ids are never
/// reused, as a timer makes a few events once.
class HostClock {
public:
    int64_t create() {
        std::lock_guard lock(mutex_);
        times_.emplace_back(kNotRecorded);
        return static_cast<int64_t>(times_.size());
    }

    void record(int64_t id) {
        const auto now = std::chrono::steady_clock::now().time_since_epoch();
        at(id).store(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
    }

    int64_t time(int64_t id) {
        const int64_t value = at(id).load();
        TORCH_CHECK(value != kNotRecorded, "the event was not recorded");
        return value;
    }

private:
    std::atomic<int64_t> &at(int64_t id) {
        std::lock_guard lock(mutex_);
        return times_.at(id - 1);
    }

    std::mutex mutex_;
    std::deque<std::atomic<int64_t>> times_; // a deque keeps its elements where they are
};

HostClock &host_clock() {
    static HostClock clock;
    return clock;
}

[[noreturn]] void no_graphs() { TORCH_CHECK_NOT_IMPLEMENTED(false, "graph capture: not supported on Neuron (basic mode)"); }

} // namespace

EventHandle::EventHandle() : raw_event_(host_clock().create()) {}

EventHandle::EventHandle(int64_t raw_event) : raw_event_(raw_event) {}

void EventHandle::record(int64_t, bool) const { host_clock().record(raw_event_); }

void EventHandle::synchronize() const {}

bool EventHandle::query() const { return true; }

float EventHandle::elapsed_time(const EventHandle &end_event) const {
    return static_cast<float>(host_clock().time(end_event.raw_event_) - host_clock().time(raw_event_)) * 1e-6f;
}

bool EventHandle::operator==(const EventHandle &other) const { return raw_event_ == other.raw_event_; }

std::size_t EventHandle::hash() const { return std::hash<int64_t>{}(raw_event_); }

EventRecordNodeHandle::EventRecordNodeHandle(int64_t raw_node, int64_t raw_graph_exec)
    : raw_node_(raw_node), raw_graph_exec_(raw_graph_exec) {}

EventHandle EventRecordNodeHandle::get_event() const { no_graphs(); }

void EventRecordNodeHandle::set_event(const EventHandle &) { no_graphs(); }

GraphHandle::GraphHandle(py::object graph) : graph_(std::move(graph)) {}

std::vector<EventRecordNodeHandle> GraphHandle::get_event_record_nodes() const { no_graphs(); }

bool GraphHandle::operator==(const GraphHandle &other) const { return graph_.is(other.graph_); }

std::size_t GraphHandle::hash() const { return std::hash<const void *>{}(graph_.ptr()); }

} // namespace deepinfer::graph_timer
