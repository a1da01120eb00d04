// Streams whose work waits: a kernel or a copy runs when somebody waits for it, or at once, as FOREWORD_LATE says.
//
//   FOREWORD_LATE   every first stream of two, every second, or both do what they hold as late as CUDA allows
//
// Both extremes are orders that a device may take. What is right in all of them needs no order that nobody asked for.
#pragma once
#include <deque>
#include <functional>
#include <memory>
#include <vector>

namespace standin {

struct Stream;

// A place in a stream, as an event marks it.
struct Mark {
    Stream* stream;
    bool reached = false;
};

struct Work {
    // What is done; empty for marks and waits.
    std::function<void()> run;
    std::shared_ptr<Mark> reaches;
    std::shared_ptr<Mark> awaits;
};

// What was recorded, to be put into a stream as a whole.
using Graph = std::vector<std::function<void()>>;

struct Stream {
    bool late = false;
    std::deque<Work> waiting;
    // While it is captured.
    std::unique_ptr<Graph> recording;
    // Something was asked for that a capture cannot hold.
    bool invalid = false;

    // Whether the work that stands first could be done without another stream's.
    bool blocked() const { return waiting.front().awaits && !waiting.front().awaits->reached; }

    void first() {
        Work work = std::move(waiting.front());
        waiting.pop_front();
        if (work.run) work.run();
        if (work.reaches) work.reaches->reached = true;
    }
};

inline std::vector<std::unique_ptr<Stream>>& streams() {
    static std::vector<std::unique_ptr<Stream>> all;
    return all;
}

// Streams that are not late do what they can.
inline void settle() {
    bool progress = true;
    while (progress) {
        progress = false;
        for (auto& stream : streams())
            while (!stream->late && !stream->waiting.empty() && !stream->blocked()) stream->first(), progress = true;
    }
}

inline void one(Stream& stream) {
    while (stream.blocked()) {
        auto mark = stream.waiting.front().awaits;
        one(*mark->stream);
    }
    stream.first();
}

// Everything that the stream holds, and what it waits for.
inline void finish(Stream& stream) {
    while (!stream.waiting.empty()) one(stream);
    settle();
}

inline void put(Stream& stream, Work work) {
    stream.waiting.push_back(std::move(work));
    settle();
}

// Work, or a part of what is recorded.
inline void put(Stream& stream, std::function<void()> run) {
    if (stream.recording) stream.recording->push_back(std::move(run));
    else put(stream, Work{std::move(run), nullptr, nullptr});
}

}  // namespace standin
