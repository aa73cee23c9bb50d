/* Errors, and their lines on standard error. */
#ifndef KVRAIL_NIXL_FAILURE_H
#define KVRAIL_NIXL_FAILURE_H

#include <stdexcept>
#include <string>

#include "interface.h"

/* The end of a call, with a message for people. */
class Failure : public std::runtime_error {
    core::Status status_;

  public:
    Failure(core::Status status, const std::string &what)
        : std::runtime_error(what), status_(status) {}
    core::Status status() const { return status_; }
};

/* A line for people, on standard error. */
void print(const std::string &line);

#endif
